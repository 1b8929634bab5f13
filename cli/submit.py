"""For spark-submit, which wants a file: `spark-submit --master … cli/submit.py prepare SOURCE OUT`.

The same job as `feedline prepare`, with Spark's settings from spark-submit. Executors need Python with feedline's
`prepare` extra; where it is not installed, ship it (docs/spark-cluster.md):

    venv-pack -o env.tar.gz --exclude '*/pyspark/jars/*'
    PYSPARK_PYTHON=./env/bin/python feedline prepare SOURCE OUT --master … --conf spark.archives=env.tar.gz#env
"""

import sys

if __name__ == "__main__":
    # A script's own folder comes first on the path, and this one has files named like standard modules.
    del sys.path[0]
    from feedline.cli.main import run

    run()
