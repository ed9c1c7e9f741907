"""Counter-based random numbers: a draw is a pure function of where it is used, not of what was drawn before.

That makes common random numbers independent of order: two controllers that reach the same position of the same request
see the same draws, whatever they did before, and so do the compiled and the interpreted kernel.

Generator: Philox4x32-10 (Salmon et al., SC 2011). Chosen over 64-bit mixers because every product is 32 x 32 -> 64 bit:
nothing overflows, so the same source gives the same numbers compiled, interpreted (no numpy overflow warning, which
pytest would turn into an error) and on whole arrays. One draw costs about 15 ns compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.jit import jit

_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint64(0x9E3779B9)
_W1 = np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_11 = np.uint64(11)
_TO_UNIT = 2.0**-53


@jit
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """One Philox4x32-10 block.

    Args:
        c0, c1, c2, c3: counter words, uint64 values below 2^32.
        k0, k1: key words, uint64 values below 2^32.

    Returns:
        Four uint64 values below 2^32.
    """
    for _ in range(10):
        product0 = _M0 * c0
        product1 = _M1 * c2
        c0, c1, c2, c3 = (product1 >> _32) ^ c1 ^ k0, product1 & _LOW, (product0 >> _32) ^ c3 ^ k1, product0 & _LOW
        k0 = (k0 + _W0) & _LOW
        k1 = (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@jit
def uniform_stream(seed: Any, stream: Any, request: Any, pos: Any, i: Any) -> Any:
    """Like `uniform`, in the stream numbered `stream` (0 .. 2^32-1); streams of one seed are independent.

    Stream 0 is the one of `uniform`. Use another number for every other purpose.
    """
    s = np.uint64(seed)
    words = philox(
        np.uint64(request) & _LOW,
        np.uint64(pos) & _LOW,
        np.uint64(i) & _LOW,
        np.uint64(stream) & _LOW,
        s & _LOW,
        s >> _32,
    )
    # 53 random bits, so that every value is a multiple of 2^-53 and 1.0 cannot occur.
    return np.float64((words[0] << _32 | words[1]) >> _11) * _TO_UNIT


@jit
def uniform(seed: Any, request: Any, pos: Any, i: Any) -> Any:
    """The uniform number in [0, 1) that belongs to draw `i` at position `pos` of `request`; callable inside njit loops.

    Args:
        seed: whole number in 0 .. 2^63-1.
        request, pos, i: whole numbers in 0 .. 2^32-1.

    Returns:
        float64, the same bits compiled, interpreted and from `uniform_array`.
    """
    return uniform_stream(seed, 0, request, pos, i)


_philox_arrays = getattr(philox, "py_func", philox)  # py_func does not exist when compilation is disabled


def uniform_array(
    seed: int,
    request: NDArray[Any] | int,
    pos: NDArray[Any] | int,
    i: NDArray[Any] | int,
    *,
    stream: int = 0,
) -> NDArray[np.float64]:
    """`uniform_stream` for whole arrays, which are broadcast against each other.

    The interpreted body of `philox` runs on numpy arrays, so there is one definition and nothing to compile.

    Args:
        seed: whole number in 0 .. 2^63-1.
        request, pos, i: whole numbers in 0 .. 2^32-1, any broadcastable shapes.
        stream: stream number.

    Returns:
        float64 array of the broadcast shape.
    """
    c0, c1, c2 = np.broadcast_arrays(*(np.asarray(x).astype(np.uint64) & _LOW for x in (request, pos, i)))
    key = np.full((), seed, dtype=np.uint64)
    words = _philox_arrays(c0, c1, c2, np.full_like(c0, stream), key & _LOW, key >> _32)
    return ((words[0] << _32 | words[1]) >> _11).astype(np.float64) * _TO_UNIT
