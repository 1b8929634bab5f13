"""The compiled kernel, the one part of feedline that is not Python; all else about the package is in pyproject.toml.

A plain C library, called by ctypes: it needs no headers of Python's, and one wheel serves every Python of a platform.
`optional`: where it cannot be compiled, installing says so and goes on, and `feedline doctor` says what runs instead.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNEL = Path("pipeline/kernel")


class Library(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": Library, "bdist_wheel": Wheel},
    ext_modules=[
        Extension(
            "feedline.pipeline.kernel.native",
            sources=sorted(map(str, KERNEL.glob("*.c"))),
            depends=sorted(map(str, KERNEL.glob("*.h"))),
            # contraction would make the coefficients depend on the processor
            extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"],
            libraries=["m"],
            optional=True,
        )
    ],
)
