# feedline with everything it needs, on a CUDA base: the same set-up as `make setup`, in an image.
#
#   docker build -t feedline .
#   docker run --gpus all --shm-size 1g -v "$PWD/out:/out" feedline demo --out /out
#
# Not tested by this project's own checks: they run where no container engine does. The steps are those of
# bootstrap.py, which is tested; torch brings its own CUDA libraries, the base gives the driver's interface (NVML).
FROM nvidia/cuda:13.0.1-base-ubuntu24.04

ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      python3 python3-venv python3-dev openjdk-17-jre-headless gcc libc6-dev make \
      libjpeg-dev zlib1g-dev libwebp-dev libtiff-dev liblcms2-dev \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /feedline
# One copy per room: nothing else of the checkout is needed at run time.
COPY bootstrap.py setup.py MANIFEST.in requirements.txt pyproject.toml README.md LICENSE ./
COPY cli ./cli
COPY pipeline ./pipeline
COPY preprocess ./preprocess
COPY profiling ./profiling
COPY train ./train
COPY benchmarks ./benchmarks
RUN python3 bootstrap.py
ENV PATH=/feedline/.venv/bin:$PATH

WORKDIR /out
ENTRYPOINT ["feedline"]
CMD ["--help"]
