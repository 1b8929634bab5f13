# cython: language_level=3, cdivision=True, freethreading_compatible=True
"""The kernel as a Python module; compiled.py has its typed face.

Every shape, stride and region is checked here against its buffer, before any of the C files sees it. What is wrong with
an argument is a ValueError, of another kind a TypeError, beyond a C integer an OverflowError. The GIL is released while
pixels are made.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
)
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec, tv_nsec
    const int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now)

cdef extern from "jpeg.h":
    int kernel_decode(
        const uint8_t *data, size_t length, int left_px, int top_px, int width_px, int height_px, int smooth,
        uint8_t *out_RGBX, size_t out_stride_bytes
    ) noexcept nogil

cdef extern from "levels.h":
    enum Level "level":
        LEVEL_PLAIN, LEVEL_AVX2, LEVEL_NEON
    Level kernel_level
    int kernel_use(Level)

cdef extern from "resize.h":
    struct arena:
        char *last
        size_t used, size
    void arena_free(arena *memory) noexcept nogil
    struct region:
        const uint8_t *pixels
        const uint8_t *u
        const uint8_t *v
        ptrdiff_t stride_bytes
        int width_px, height_px, channels, odd_left, odd_top
    struct place:
        uint8_t *pixels
        int width_px, height_px
    int resize_region(region where, arena *memory, const float *box, int flip, const place *to) noexcept nogil

cdef extern from *:
    """
    enum { MOST_PX = 1 << 20, MOST_DECODED_PX = 1 << 28 };
    """
    const int MOST_PX  # of a side
    const int MOST_DECODED_PX  # of a JPEG's region, more than any that is read

INTERFACE = 1  # as compiled.py has it: one more with every change of what Python calls or is given
NAMES = {"plain": LEVEL_PLAIN, "avx2": LEVEL_AVX2, "neon": LEVEL_NEON}
LEVELS = [name for name in NAMES if kernel_use(NAMES[name])]  # the last is in use then

cdef struct Work:
    Work *next
    const uint8_t *jpeg  # NULL where the region's pixels are there
    size_t jpeg_bytes
    int left, top, antialias, flip
    region region
    float[4] box


cdef bint is_uint8(const Py_buffer *view, int dimensions):
    """Of so many dimensions, each of 1 to MOST_PX."""
    cdef int n
    cdef bint fine = view.itemsize == 1 and view.ndim == dimensions
    for n in range(dimensions if fine else 0):
        fine = fine and 0 < view.shape[n] <= MOST_PX
    return fine


cdef class Job:
    """What fills a place (compiled.Job), checked; its buffer is held as long as this lives."""

    cdef Py_buffer source
    cdef Work work

    def __cinit__(self, source, int left, int top, int width, int height, box, bint antialias, bint flip):
        cdef Work *work = &self.work
        work.left, work.top, work.antialias, work.flip = left, top, antialias, flip
        work.region.width_px, work.region.height_px = width, height
        work.box[0], work.box[1], work.box[2], work.box[3] = box
        if left < 0 or top < 0 or width < 1 or height < 1:
            raise ValueError("the region is empty or begins outside the pixels")
        if not (0 <= work.box[0] < work.box[2] <= <float>width and 0 <= work.box[1] < work.box[3] <= <float>height):
            raise ValueError("the box is empty or reaches outside the region")
        if not isinstance(source, bytes):
            PyObject_GetBuffer(source, &self.source, PyBUF_STRIDES)
            self.find_pixels()
        elif height > MOST_DECODED_PX / width:
            raise ValueError("the region is too large")
        else:
            PyObject_GetBuffer(source, &self.source, PyBUF_SIMPLE)
            work.jpeg, work.jpeg_bytes = <const uint8_t *>self.source.buf, <size_t>self.source.len
            work.region.channels, work.region.stride_bytes = 4, 4 * <ptrdiff_t>width

    def __dealloc__(self):
        PyBuffer_Release(&self.source)

    cdef int find_pixels(self) except -1:
        """Where the region's pixels are in the source, which has them as RGB, RGBX or I420."""
        cdef const Py_buffer *view = &self.source
        cdef region *region = &self.work.region
        cdef const uint8_t *pixels = <const uint8_t *>view.buf
        cdef ptrdiff_t left = self.work.left, top = self.work.top, width, height
        if is_uint8(view, 3) and 3 <= view.shape[2] <= 4 and view.strides[2] == 1 and (
            view.shape[1] == 1 or view.strides[1] == view.shape[2]
        ):
            height, region.channels = view.shape[0], view.shape[2]
        elif is_uint8(view, 2) and PyBuffer_IsContiguous(view, b"C") and not (view.shape[0] % 3 or view.shape[1] % 2):
            height, region.channels = view.shape[0] / 3 * 2, 1
            region.odd_left, region.odd_top = left % 2, top % 2
        else:
            raise ValueError(
                "pixels are uint8 of height, width and 3 or 4, a row in one piece, or I420 in one piece"
            )
        width = view.shape[1]
        if region.width_px > width - left or region.height_px > height - top:
            raise ValueError("the region reaches outside the pixels")
        region.stride_bytes = view.strides[0]
        region.pixels = (
            pixels + (top - region.odd_top) * region.stride_bytes + (left - region.odd_left) * region.channels
        )
        if region.channels == 1:
            region.u = pixels + width * height + top / 2 * (width / 2) + left / 2
            region.v = region.u + width * height / 4
        return 0


def fill(list jobs not None, bint smooth, places):
    """Regions of JPEGs and pixels, resized: how many, and the decoder's nanoseconds."""
    cdef Py_buffer out
    cdef Work *first = NULL
    cdef Job job
    cdef place to
    cdef Py_ssize_t filled
    cdef long long decoding_ns = 0
    cdef list given = jobs[:]  # a list of our own: whatever Python runs meanwhile may change theirs
    PyObject_GetBuffer(places, &out, PyBUF_STRIDES | PyBUF_WRITABLE)
    try:
        if not (is_uint8(&out, 4) and out.shape[3] == 3 and PyBuffer_IsContiguous(&out, b"C")):
            raise ValueError("the places are uint8 of number, height, width and 3, in one piece")
        if len(given) > out.shape[0]:
            raise ValueError("there are more jobs than places")
        to.pixels, to.width_px, to.height_px = <uint8_t *>out.buf, out.shape[2], out.shape[1]
        held = [Job(*job_of) for job_of in given]
        for job in reversed(held):
            if job.work.region.u and not job.work.antialias and (to.width_px % 2 or to.height_px % 2):
                raise ValueError("planes are resized to even sides only, unless antialiased")
            job.work.next, first = first, &job.work
        with nogil:
            filled = fill_places(first, to, smooth, &decoding_ns)
        if filled < 0:
            raise MemoryError
        return filled, decoding_ns
    finally:
        PyBuffer_Release(&out)


cdef Py_ssize_t fill_places(Work *work, place to, bint smooth, long long *decoding_ns) noexcept nogil:
    """Does the work up to a JPEG that is left to libjpeg-turbo. Returns how much; -1 where memory ran out."""
    cdef Py_ssize_t filled = 0
    cdef arena memory
    cdef long long began_ns
    cdef uint8_t *decoded = <uint8_t *>malloc(largest_bytes(work))
    while work and decoded:
        if work.jpeg:
            began_ns = now_ns()
            work.region.pixels = decoded if kernel_decode(
                work.jpeg, work.jpeg_bytes, work.left, work.top, work.region.width_px, work.region.height_px, smooth,
                decoded, <size_t>work.region.stride_bytes
            ) else NULL
            decoding_ns[0] += now_ns() - began_ns
            if not work.region.pixels:
                break
        memory = arena(last=NULL, used=0, size=0)
        if not resize_region(work.region, &memory, work.box if work.antialias else NULL, work.flip, &to):
            filled = -1
        arena_free(&memory)
        if filled < 0:
            break
        filled += 1
        to.pixels += 3 * <ptrdiff_t>to.width_px * to.height_px
        work = work.next
    if not decoded:
        filled = -1
    free(decoded)
    return filled


cdef size_t largest_bytes(const Work *work) noexcept nogil:
    """Of the JPEGs' regions, decoded; 1 where there is none."""
    cdef size_t largest = 1
    while work:
        if work.jpeg:
            largest = max(largest, <size_t>work.region.stride_bytes * <size_t>work.region.height_px)
        work = work.next
    return largest


cdef long long now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <long long>1000000000 + now.tv_nsec


def level():
    """The instructions in use."""
    return list(NAMES)[<int>kernel_level]


def use(str name not None):
    """One of LEVELS, from now on."""
    if name not in NAMES or not kernel_use(NAMES[name]):
        raise ValueError(f"this processor or this build has no {name}")
