"""The compiled kernel, the one part of feedline that is not Python; all else about the package is in pyproject.toml.

`native.pyx` is its face, in Cython; the C files know no Python. `optional`: where it cannot be compiled, installing
says so and goes on, and `feedline doctor` says what runs instead.
"""

import sysconfig
from pathlib import Path

from setuptools import Extension, setup

KERNEL = Path("pipeline/kernel")
ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""One module for Python 3.11 and every later one; interpreters without the lock have no such thing."""

native = Extension(
    "feedline.pipeline.kernel.native",
    sources=[str(KERNEL / "native.pyx"), *sorted(map(str, KERNEL.glob("*.c")))],
    depends=sorted(map(str, KERNEL.glob("*.h"))),
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if ABI3 else [],
    py_limited_api=ABI3,
    # contraction would make the coefficients depend on the processor
    extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"],
    libraries=["m"],
    optional=True,
)
native.cython_c_in_temp = True  # type: ignore[attr-defined]  # Cython's; an option that nobody knows without it
setup(ext_modules=[native], options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {})
