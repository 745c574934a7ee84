# A server for mounted model folders, running as an unprivileged user:
#
#   docker build -t regard .
#   docker run --rm -p 5000:5000 -v "$PWD/runs/demo/best:/models/demo:ro" regard /models/demo
#
# The default build of PyTorch includes CUDA. For a much smaller image without it, pass PyTorch's index of CPU builds:
# --build-arg PIP_EXTRA_INDEX_URL=...

FROM python:3.12-slim AS build
ARG PIP_EXTRA_INDEX_URL
RUN python -m venv /opt/regard
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY regard ./regard
RUN /opt/regard/bin/pip install --no-cache-dir '.[serve]'

FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home regard
COPY --from=build /opt/regard /opt/regard
ENV PATH="/opt/regard/bin:$PATH" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 5000
# /health reports whether the process is alive; load balancers should use /ready.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:5000/health', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["regard", "serve", "--host", "0.0.0.0"]
CMD ["/models/model"]
