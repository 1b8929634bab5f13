/* The kernel as a Python module, `feedline.pipeline.kernel.native`; compiled.py has its typed face.

   Every shape, stride and region is checked here against its buffer, before any of the other files sees it. What is
   wrong with an argument is a ValueError, of another kind a TypeError. The GIL is released while pixels are made. */
#ifdef KERNEL_ABI3
#define Py_LIMITED_API 0x030B0000 /* one module for Python 3.11 and later */
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "jpeg.h"
#include "levels.h"
#include "resize.h"

enum { MOST_PX = 1 << 20 }; /* of a side */

static const char *const LEVEL_NAMES[] = {
    [LEVEL_PLAIN] = "plain", [LEVEL_AVX2] = "avx2", [LEVEL_AVX512] = "avx512", [LEVEL_NEON] = "neon", NULL};
static const char *const FILTER_NAMES[] = {
    [FILTER_PLAIN] = "plain",     [FILTER_BOX] = "box",         [FILTER_BILINEAR] = "bilinear",
    [FILTER_HAMMING] = "hamming", [FILTER_BICUBIC] = "bicubic", [FILTER_LANCZOS] = "lanczos", NULL};

/* Its place among the names; -1 with a ValueError. */
static int named(const char *const *names, const char *name, const char *what)
{
    for (int n = 0; names[n]; n++)
        if (!strcmp(names[n], name))
            return n;
    PyErr_Format(PyExc_ValueError, "there is no %s %s", what, name);
    return -1;
}

static int refused(const char *why)
{
    PyErr_SetString(PyExc_ValueError, why);
    return 0;
}

/* Numbers that fit no int are values like any other that is wrong. */
static PyObject *not_parsed(void)
{
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        refused("a number is too large");
    }
    return NULL;
}

/* --- pixels ----------------------------------------------------------------------------------------------------- */

/* An array of `least` to `most` channels, or I420 where `least` is 1. 1: the view is to be released. */
static int get_pixels(PyObject *object, Py_buffer *view, int flags, int least, int most)
{
    if (PyObject_GetBuffer(object, view, flags | PyBUF_STRIDES) < 0)
        return 0;
    const int planes = view->ndim == 2;
    int fine = view->itemsize == 1 && (planes ? least == 1 : view->ndim == 3);
    for (int n = 0; fine && n < view->ndim; n++)
        fine = view->shape[n] > 0 && view->shape[n] <= MOST_PX;
    if (fine && planes)
        fine = view->shape[0] % 3 == 0 && view->shape[1] % 2 == 0 && PyBuffer_IsContiguous(view, 'C');
    else if (fine)
        fine = view->shape[2] >= least && view->shape[2] <= most && (view->shape[2] == 1 || view->strides[2] == 1) &&
               (view->shape[1] == 1 || view->strides[1] == view->shape[2]);
    if (fine)
        return 1;
    PyBuffer_Release(view);
    return refused(least == 1 ? "pixels are uint8 of height, width and 3 or 4, a row in one piece, or I420 in one piece"
                              : "the output is uint8 of height, width and channels (3 of resize, 4 of decode), a row "
                                "in one piece");
}

/* The region of which the size is filled in already. */
static int find_region(const Py_buffer *view, int left, int top, struct region *region)
{
    const int planes = view->ndim == 2;
    const Py_ssize_t width = view->shape[1], height = planes ? view->shape[0] / 3 * 2 : view->shape[0];
    if (left < 0 || top < 0 || region->width_px < 1 || region->height_px < 1 || region->width_px > width - left ||
        region->height_px > height - top)
        return refused("the region is empty or reaches outside the pixels");
    region->channels = planes ? 1 : (int)view->shape[2];
    region->odd_left = planes ? left % 2 : 0;
    region->odd_top = planes ? top % 2 : 0;
    region->stride_bytes = view->strides[0];
    region->pixels = (const uint8_t *)view->buf + (top - region->odd_top) * view->strides[0] +
                     (Py_ssize_t)(left - region->odd_left) * region->channels;
    if (planes) {
        region->chroma_stride_bytes = width / 2;
        region->u = (const uint8_t *)view->buf + width * height + top / 2 * (width / 2) + left / 2;
        region->v = region->u + width * height / 4;
    }
    return planes || region->channels > 2 || refused("pixels have three or four channels");
}

static int resize_checked(struct region *region, int filter, const float box[4], int flip, const Py_buffer *to)
{
    const struct place place = {to->buf, to->strides[0], (int)to->shape[1], (int)to->shape[0]};
    if (!(box[0] >= 0 && box[1] >= 0 && box[0] < box[2] && box[1] < box[3] && box[2] <= (float)region->width_px &&
          box[3] <= (float)region->height_px))
        return refused("the box is empty or reaches outside the region");
    if (region->u && filter == FILTER_PLAIN && (place.width_px % 2 || place.height_px % 2))
        return refused("planes are resized to even sides only, unless by an antialiasing filter");
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = resize_region(region, (enum filter)filter, box, flip, &place);
    Py_END_ALLOW_THREADS
    if (!done)
        PyErr_NoMemory();
    return done;
}

static PyObject *resize(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *pixels, *out;
    struct region region = {0};
    Py_buffer from, to;
    const char *name;
    float box[4];
    int left, top, flip, filter, done = 0;
    if (!PyArg_ParseTuple(arguments, "Oiiii(ffff)spO:resize", &pixels, &left, &top, &region.width_px, &region.height_px,
                          &box[0], &box[1], &box[2], &box[3], &name, &flip, &out))
        return not_parsed();
    if ((filter = named(FILTER_NAMES, name, "filter")) < 0 || !get_pixels(pixels, &from, 0, 1, 4))
        return NULL;
    if (get_pixels(out, &to, PyBUF_WRITABLE, 3, 3)) {
        done = find_region(&from, left, top, &region) && resize_checked(&region, filter, box, flip, &to);
        PyBuffer_Release(&to);
    }
    PyBuffer_Release(&from);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *decode(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer data, to;
    PyObject *out;
    int left, top, width, height, smooth, done = -1;
    if (!PyArg_ParseTuple(arguments, "y*iiiipO:decode", &data, &left, &top, &width, &height, &smooth, &out))
        return not_parsed();
    if (get_pixels(out, &to, PyBUF_WRITABLE, 4, 4)) {
        if (to.shape[0] != height || to.shape[1] != width || to.strides[0] < 0) {
            refused("the output is not as large as the region");
        } else {
            Py_BEGIN_ALLOW_THREADS
            done = kernel_decode(data.buf, (size_t)data.len, left, top, width, height, smooth, to.buf,
                                 (size_t)to.strides[0]);
            Py_END_ALLOW_THREADS
        }
        PyBuffer_Release(&to);
    }
    PyBuffer_Release(&data);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* --- levels ----------------------------------------------------------------------------------------------------- */

static PyObject *level(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    return PyUnicode_FromString(LEVEL_NAMES[kernel_level]);
}

static PyObject *use(PyObject *module, PyObject *arguments)
{
    (void)module;
    const char *name;
    if (!PyArg_ParseTuple(arguments, "s:use", &name))
        return NULL;
    const int wanted = named(LEVEL_NAMES, name, "level");
    if (wanted < 0)
        return NULL;
    if (!kernel_use((enum level)wanted)) {
        PyErr_Format(PyExc_ValueError, "this processor or this build has no %s", name);
        return NULL;
    }
    return Py_NewRef(Py_None);
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
    fine = fine && PyModule_AddObjectRef(module, "LEVELS", levels) == 0;
    Py_XDECREF(levels);
    return fine ? 0 : -1;
}

static PyMethodDef METHODS[] = {
    {"resize", resize, METH_VARARGS,
     "resize(pixels, left, top, width, height, box, filter, flip, out): a region of RGB, RGBX or I420, into out."},
    {"decode", decode, METH_VARARGS,
     "decode(data, left, top, width, height, smooth, out): a region of a JPEG as RGBX; False: libjpeg-turbo must."},
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
