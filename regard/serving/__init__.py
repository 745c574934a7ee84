"""HTTP server for trained models: one process answers requests, worker processes run the models.

A request passes through these modules:

1. `server` and `connections`: sockets and slow clients. `app`: the ASGI application with its `middleware`.
2. `libretranslate`, `api`, `files` and `page_api`: the endpoints, which share `service`. `parsing` reads a request;
   `schemas` and `page_schemas` define requests and responses; `access` and `keys` decide who is served.
3. `served_models` selects a model; `batcher` puts jobs of many requests into batches, fairly (`fair_queue`).
4. `worker`: the process of a model; `messages`: what it exchanges with the server; `model_runner`: what it computes;
   `page_data`: what it computes for the page.

Besides: `config`, `errors`, `telemetry`, `documents` and `file_store` (translated files), `client` and `ray_app`.
"""
