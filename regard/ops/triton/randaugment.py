"""The kernel of `randaugment`: a program does to one image the one operation that was drawn for it.

An image is small enough to be held whole, a channel of N = H · W pixels at a time, padded to a power of two, P. Numbers
are rounded where the formula rounds them, to the nearest and between two to the even one.
"""

import triton
import triton.language as tl

ROUNDING = tl.constexpr(1.5 * 2**23)
"""Beside a number so large there is no room for fractions."""
RED, GREEN, BLUE = tl.constexpr(0.299), tl.constexpr(0.587), tl.constexpr(0.114)


@triton.jit
def _round(x):
    return (x + ROUNDING) - ROUNDING


@triton.jit
def _to_byte(x):
    return tl.minimum(tl.maximum(_round(x), 0.0), 255.0)


@triton.jit
def _grey(image, place, there, C: tl.constexpr, N: tl.constexpr):
    """How light each pixel is."""
    light = tl.load(image + place, mask=there, other=0).to(tl.float32)
    if C == 3:
        green = tl.load(image + N + place, mask=there, other=0).to(tl.float32)
        blue = tl.load(image + 2 * N + place, mask=there, other=0).to(tl.float32)
        light = _to_byte(light * RED + green * GREEN + blue * BLUE)
    return light


@triton.jit
def _map(image, made, there, place, turn, shear_x, shear_y, right, down, fill,
         C: tl.constexpr, H: tl.constexpr, W: tl.constexpr):  # fmt: skip
    """Pixels from elsewhere, by where the centre of each lies between -1 and 1, with those around that place."""
    cos, sin = tl.cos(turn), tl.sin(turn)
    x = (2 * (place % W) + 1).to(tl.float32) / W - 1
    y = (2 * (place // W) + 1).to(tl.float32) / H - 1
    from_x = x * cos + y * ((shear_x - sin) * (H / W)) + right * (2 / W)
    from_y = x * ((shear_y + sin) * (W / H)) + y * cos + down * (2 / H)
    inside = (tl.abs(from_x) <= 1) & (tl.abs(from_y) <= 1)
    column = tl.minimum(tl.maximum(((from_x + 1) * W - 1) / 2, 0.0), W - 1.0)
    row = tl.minimum(tl.maximum(((from_y + 1) * H - 1) / 2, 0.0), H - 1.0)
    left, top = tl.floor(column), tl.floor(row)
    across, along = column - left, row - top
    near = top.to(tl.int32) * W + left.to(tl.int32)
    beside, below = tl.where(left < W - 1, 1, 0), tl.where(top < H - 1, W, 0)
    for c in range(C):
        source = image + c * H * W + near
        seen = tl.load(source, mask=there, other=0).to(tl.float32) * ((1 - across) * (1 - along))
        seen += tl.load(source + beside, mask=there, other=0).to(tl.float32) * (across * (1 - along))
        seen += tl.load(source + below, mask=there, other=0).to(tl.float32) * ((1 - across) * along)
        seen += tl.load(source + below + beside, mask=there, other=0).to(tl.float32) * (across * along)
        value = _to_byte(tl.where(inside, seen, fill))
        tl.store(made + c * H * W + place, value.to(tl.int32).to(tl.uint8), mask=there)


@triton.jit
def _stretch(value, there):
    """The darkest value of a channel to 0, its lightest to 255."""
    low = tl.min(tl.where(there, value, 255.0), 0)
    high = tl.max(tl.where(there, value, 0.0), 0)
    wide = tl.floor(tl.div_rn((value - low) * 255, tl.maximum(high - low, 1.0) + tl.zeros_like(value)))
    return tl.where(high > low, tl.minimum(tl.maximum(wide, 0.0), 255.0), value)


@triton.jit
def _equalise(value, there, N: tl.constexpr, P: tl.constexpr):
    """All values of a channel equally frequent."""
    bins = tl.arange(0, 256)
    whole = tl.where(there, value, 255.0).to(tl.int32)
    histogram = tl.histogram(whole, 256) - tl.where(bins == 255, P - N, 0)
    lightest = tl.max(tl.where(there, value, 0.0), 0).to(tl.int32)
    step = (N - tl.sum(tl.where(bins == lightest, histogram, 0), 0)) // 255
    below = tl.cumsum(histogram, 0) - histogram
    table = tl.minimum((step // 2 + below) // tl.maximum(step, 1), 255)
    return tl.where(step > 0, tl.gather(table, whole, 0).to(tl.float32), value)


@triton.jit
def _smooth(image, place, value, there, H: tl.constexpr, W: tl.constexpr):
    """Each pixel joined with its neighbours, itself five times; the outermost pixels stay as they are."""
    row, column = place // W, place % W
    inner = there & (row > 0) & (row < H - 1) & (column > 0) & (column < W - 1)
    total = 4 * value
    for down in tl.static_range(-1, 2):
        for right in tl.static_range(-1, 2):
            total += tl.load(image + place + down * W + right, mask=inner, other=0).to(tl.float32)
    return tl.where(inner, _to_byte(tl.div_rn(total, 13.0 + tl.zeros_like(total))), value)


@triton.jit
def operate(
    images, choices, amounts, signs, made, fill,
    ROTATION: tl.constexpr, SHEAR: tl.constexpr, TRANSLATION: tl.constexpr, BLEND: tl.constexpr, BITS: tl.constexpr,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """One operation on each image: 0 none, 1 to 5 maps, 6 to 11 tables, 12 and 13 blends, in the formula's order."""
    N: tl.constexpr = H * W
    number = tl.program_id(0)
    choice, amount = tl.load(choices + number), tl.load(amounts + number)
    signed = amount * tl.load(signs + number)
    factor = 1 + BLEND * signed
    place = tl.arange(0, P)
    there = place < N
    image = images + number.to(tl.int64) * C * N
    result = made + number.to(tl.int64) * C * N
    if (choice >= 1) & (choice <= 5):
        turn = tl.where(choice == 1, signed * ROTATION, 0.0)
        shear_x, shear_y = tl.where(choice == 2, signed * SHEAR, 0.0), tl.where(choice == 3, signed * SHEAR, 0.0)
        right = tl.where(choice == 4, signed * (TRANSLATION * W), 0.0)
        down = tl.where(choice == 5, signed * (TRANSLATION * H), 0.0)
        _map(image, result, there, place, turn, shear_x, shear_y, right, down, fill, C, H, W)
    else:
        grey = tl.zeros([P], tl.float32)
        if (choice == 7) | (choice == 12):
            grey = _grey(image, place, there, C, N)
        mean = _round(tl.sum(grey, 0) / N)
        for c in range(C):
            at = image + c * N
            value = tl.load(at + place, mask=there, other=0).to(tl.float32)
            changed = value
            if choice == 6:
                changed = _to_byte(value * factor)
            elif choice == 7:
                changed = _to_byte(mean + (value - mean) * factor)
            elif choice == 8:
                lost = (8 - _round(8 - (8 - BITS) * amount)).to(tl.int32)
                changed = (value.to(tl.int32) >> lost << lost).to(tl.float32)
            elif choice == 9:
                changed = tl.where(value < 256 * (1 - amount), value, 255 - value)
            elif choice == 10:
                changed = _stretch(value, there)
            elif choice == 11:
                changed = _equalise(value, there, N, P)
            elif choice == 12:
                changed = _to_byte(grey + (value - grey) * factor)
            elif choice == 13:
                plain = _smooth(at, place, value, there, H, W)
                changed = _to_byte(plain + (value - plain) * factor)
            tl.store(result + c * N + place, changed.to(tl.int32).to(tl.uint8), mask=there)
