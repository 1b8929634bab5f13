/* The kernel as a Python module, `feedline.pipeline.kernel.native`; compiled.py has its typed face.

   Every shape, stride and region is checked here against its buffer, before any of the other files sees it. What is
   wrong with an argument is a ValueError, of another kind a TypeError, beyond a C integer an OverflowError. The GIL is
   released while pixels are made. */
#ifdef KERNEL_ABI3
#define Py_LIMITED_API 0x030B0000 /* one module for Python 3.11 and later */
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>
#include <time.h>

#include "jpeg.h"
#include "levels.h"
#include "resize.h"

enum { INTERFACE = 1 }; /* as compiled.py has it: one more with every change of what Python calls or is given */
enum { MOST_PX = 1 << 20, MOST_DECODED_PX = 1 << 28 }; /* of a side; of a JPEG's region, more than any that is read */

static const char *const LEVEL_NAMES[] = {
    [LEVEL_PLAIN] = "plain", [LEVEL_AVX2] = "avx2", [LEVEL_NEON] = "neon", NULL};

/* What one place is filled with. */
struct job {
    Py_buffer from; /* a JPEG's bytes, or pixels */
    int is_jpeg, left, top;
    struct region region; /* of a JPEG: as it will be when it is decoded */
    float box[4];
    int antialias, flip;
    struct place place;
};

static int refused(const char *why)
{
    PyErr_SetString(PyExc_ValueError, why);
    return 0;
}

/* --- jobs ------------------------------------------------------------------------------------------------------- */

/* A view of the places, or of pixels that fill one. 1: it is to be released. */
static int get_view(PyObject *object, Py_buffer *view, int is_output)
{
    if (PyObject_GetBuffer(object, view, is_output ? PyBUF_STRIDES | PyBUF_WRITABLE : PyBUF_STRIDES) < 0)
        return 0;
    const int last = view->ndim - 1, whole = is_output || view->ndim == 2, planes = !is_output && whole;
    int fine = view->itemsize == 1 && (planes || view->ndim == (is_output ? 4 : 3));
    for (int n = 0; fine && n <= last; n++)
        fine = view->shape[n] > 0 && view->shape[n] <= MOST_PX;
    if (fine && whole)
        fine = PyBuffer_IsContiguous(view, 'C');
    if (fine && planes)
        fine = view->shape[0] % 3 == 0 && view->shape[1] % 2 == 0;
    else if (fine)
        fine = view->shape[last] >= 3 && view->shape[last] <= (is_output ? 3 : 4) && view->strides[last] == 1 &&
               (view->shape[last - 1] == 1 || view->strides[last - 1] == view->shape[last]);
    if (fine)
        return 1;
    PyBuffer_Release(view);
    return refused(is_output ? "the places are uint8 of number, height, width and 3, in one piece"
                             : "pixels are uint8 of height, width and 3 or 4, a row in one piece, or I420 in one piece");
}

/* Where the region's pixels are; the decoder itself checks those of a JPEG. */
static int find_region(struct job *job)
{
    struct region *region = &job->region;
    if (job->left < 0 || job->top < 0 || region->width_px < 1 || region->height_px < 1)
        return refused("the region is empty or begins outside the pixels");
    if (job->is_jpeg) {
        region->channels = 4;
        region->stride_bytes = 4 * (ptrdiff_t)region->width_px;
        return region->height_px <= MOST_DECODED_PX / region->width_px || refused("the region is too large");
    }
    const Py_buffer *view = &job->from;
    const int planes = view->ndim == 2;
    const Py_ssize_t width = view->shape[1], height = planes ? view->shape[0] / 3 * 2 : view->shape[0];
    if (region->width_px > width - job->left || region->height_px > height - job->top)
        return refused("the region reaches outside the pixels");
    region->channels = planes ? 1 : (int)view->shape[2];
    region->odd_left = planes ? job->left % 2 : 0;
    region->odd_top = planes ? job->top % 2 : 0;
    region->stride_bytes = view->strides[0];
    region->pixels = (const uint8_t *)view->buf + (job->top - region->odd_top) * view->strides[0] +
                     (Py_ssize_t)(job->left - region->odd_left) * region->channels;
    if (planes) {
        region->u = (const uint8_t *)view->buf + width * height + job->top / 2 * (width / 2) + job->left / 2;
        region->v = region->u + width * height / 4;
    }
    return 1;
}

static int check_filter(const struct job *job)
{
    const float *box = job->box;
    if (!(box[0] >= 0 && box[1] >= 0 && box[0] < box[2] && box[1] < box[3] && box[2] <= (float)job->region.width_px &&
          box[3] <= (float)job->region.height_px))
        return refused("the box is empty or reaches outside the region");
    return !job->region.u || job->antialias || !(job->place.width_px % 2 || job->place.height_px % 2) ||
           refused("planes are resized to even sides only, unless antialiased");
}

/* Reads a job for a place, and checks it. 1: its buffer is to be released. */
static int get_job(PyObject *tuple, const Py_buffer *to, Py_ssize_t place, struct job *job)
{
    PyObject *from;
    float *box = job->box;
    if (!tuple || !PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a job is a tuple");
        return 0;
    }
    if (!PyArg_ParseTuple(tuple, "Oiiii(ffff)pp:fill", &from, &job->left, &job->top, &job->region.width_px,
                          &job->region.height_px, &box[0], &box[1], &box[2], &box[3], &job->antialias, &job->flip))
        return 0;
    job->place = (struct place){(uint8_t *)to->buf + place * to->strides[0], (int)to->shape[2], (int)to->shape[1]};
    job->is_jpeg = PyBytes_Check(from);
    if (job->is_jpeg ? PyObject_GetBuffer(from, &job->from, PyBUF_SIMPLE) < 0 : !get_view(from, &job->from, 0))
        return 0;
    if (find_region(job) && check_filter(job))
        return 1;
    PyBuffer_Release(&job->from);
    return 0;
}

/* --- filling ---------------------------------------------------------------------------------------------------- */

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Does the jobs up to a JPEG that is left to libjpeg-turbo. Returns how many; -1 where memory ran out. */
static Py_ssize_t fill_places(struct job *jobs, Py_ssize_t count, int smooth, long long *decoding_ns)
{
    size_t largest = 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        const size_t bytes = 4 * (size_t)jobs[n].region.width_px * (size_t)jobs[n].region.height_px;
        largest = jobs[n].is_jpeg && bytes > largest ? bytes : largest;
    }
    uint8_t *decoded = malloc(largest + 1);
    Py_ssize_t filled = decoded ? 0 : -1;
    while (filled >= 0 && filled < count) {
        struct job *job = &jobs[filled];
        struct region *region = &job->region;
        if (job->is_jpeg) {
            region->pixels = decoded;
            const long long began_ns = now_ns();
            const int is_decoded = kernel_decode(job->from.buf, (size_t)job->from.len, job->left, job->top,
                                                 region->width_px, region->height_px, smooth, decoded,
                                                 (size_t)region->stride_bytes);
            *decoding_ns += now_ns() - began_ns;
            if (!is_decoded)
                break;
        }
        struct arena arena = {0};
        const int fits = resize_region(*region, &arena, job->antialias ? job->box : NULL, job->flip, &job->place);
        arena_free(&arena);
        filled = fits ? filled + 1 : -1;
    }
    free(decoded);
    return filled;
}

static PyObject *fill(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *list, *out;
    Py_buffer to;
    int smooth;
    if (!PyArg_ParseTuple(arguments, "O!pO:fill", &PyList_Type, &list, &smooth, &out) || !get_view(out, &to, 1))
        return NULL;
    const Py_ssize_t count = PyList_Size(list);
    Py_ssize_t held = 0, filled = -1;
    long long decoding_ns = 0;
    struct job *jobs = PyMem_Calloc((size_t)count + 1, sizeof *jobs);
    if (!jobs)
        PyErr_NoMemory();
    else if (count > to.shape[0])
        refused("there are more jobs than places");
    else
        while (held < count && get_job(PyList_GetItem(list, held), &to, held, &jobs[held]))
            held++;
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        filled = fill_places(jobs, count, smooth, &decoding_ns);
        Py_END_ALLOW_THREADS
        if (filled < 0)
            PyErr_NoMemory();
    }
    while (held)
        PyBuffer_Release(&jobs[--held].from);
    PyMem_Free(jobs);
    PyBuffer_Release(&to);
    return filled < 0 ? NULL : Py_BuildValue("nL", filled, decoding_ns);
}

/* --- levels ----------------------------------------------------------------------------------------------------- */

static PyObject *level(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyUnicode_FromString(LEVEL_NAMES[kernel_level]);
}

static PyObject *use(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    const char *name;
    if (!PyArg_ParseTuple(arguments, "s:use", &name))
        return NULL;
    for (int n = 0; LEVEL_NAMES[n]; n++)
        if (!strcmp(LEVEL_NAMES[n], name) && kernel_use((enum level)n))
            return Py_NewRef(Py_None);
    PyErr_Format(PyExc_ValueError, "this processor or this build has no %s", name);
    return NULL;
}

static int fill_module(PyObject *module)
{
    PyObject *levels = PyList_New(0);
    int fine = levels != NULL;
    for (int n = 0; fine && LEVEL_NAMES[n]; n++) {
        PyObject *name = PyUnicode_FromString(LEVEL_NAMES[n]);
        fine = name && (!kernel_use((enum level)n) || PyList_Append(levels, name) == 0);
        Py_XDECREF(name);
    }
    fine = fine && PyModule_AddObjectRef(module, "LEVELS", levels) == 0 &&
           PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) == 0;
    Py_XDECREF(levels);
    return fine ? 0 : -1;
}

static PyMethodDef METHODS[] = {
    {"fill", fill, METH_VARARGS,
     "fill(jobs, smooth, places): regions of JPEGs and pixels, resized; how many, and the decoder's nanoseconds."},
    {"level", level, METH_NOARGS, "level(): the instructions in use."},
    {"use", use, METH_VARARGS, "use(level): one of LEVELS, from now on."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)fill_module}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "native",
    .m_doc = "Pixels from bytes: the compiled part of feedline's loader.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit_native(void)
{
    return PyModuleDef_Init(&MODULE);
}
