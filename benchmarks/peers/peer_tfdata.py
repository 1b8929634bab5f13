"""tf.data with its fused decode_and_crop_jpeg over files, resize, flip, uint8 batches; AUTOTUNE on its threads."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
import os
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from peer_protocol import Epoch, Spec, image_files, serve


def make(spec: Spec) -> Epoch:
    px = spec["px"]

    def one(path: Any) -> Any:
        data = tf.io.read_file(path)
        shape = tf.io.extract_jpeg_shape(data)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([0, 0, 4]), area_range=(0.08, 1.0), aspect_ratio_range=(3 / 4, 4 / 3), max_attempts=10,
            use_image_if_no_bounding_boxes=True)  # fmt: skip
        y, x, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(size)
        image = tf.image.decode_and_crop_jpeg(data, tf.stack([y, x, height, width]), channels=3)
        image = tf.image.resize(image, [px, px], antialias=False)
        return tf.cast(tf.image.random_flip_left_right(image), tf.uint8)

    paths = [str(path) for path, _ in image_files(spec["folder"])]
    dataset = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    dataset = dataset.map(one, num_parallel_calls=tf.data.AUTOTUNE).batch(spec["batch_size"], drop_remainder=True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = max(1, spec["workers"])
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options).as_numpy_iterator


if __name__ == "__main__":
    serve(make)
