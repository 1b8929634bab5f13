"""Several hosts on one machine: network namespaces on a bridge of their own, so that nodes can only meet over TCP."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from feedline.pipeline.base.errors import FeedlineError


@dataclass(frozen=True, kw_only=True)
class Host:
    prefix: tuple[str, ...]
    """What a command line begins with to run there."""
    address: str
    apart: bool
    """It has a network of its own."""


class NoNamespaces(FeedlineError):
    """This machine does not let us make them; the message is its own."""


@contextmanager
def joined_hosts(count: int) -> Generator[list[Host]]:
    """`count` hosts that reach each other; without the right to make namespaces, this one `count` times."""
    here = Host(prefix=(), address="127.0.0.1", apart=False)
    if count == 1 or os.geteuid() != 0 or shutil.which("ip") is None:
        yield [here] * count
        return
    with ExitStack() as stack:
        try:
            hosts = make_hosts(count, stack)
        except NoNamespaces:
            hosts = [here] * count
        yield hosts


def make_hosts(count: int, stack: ExitStack) -> list[Host]:
    """Each is undone by `stack`. Raises NoNamespaces."""
    tag = uuid.uuid4().hex[:6]
    subnet = f"10.84.{int(tag[:2], 16)}"
    bridge = f"fl{tag}b"
    ip("link", "add", bridge, "type", "bridge")
    stack.callback(ip, "link", "del", bridge)
    ip("link", "set", bridge, "up")
    hosts: list[Host] = []
    for number in range(count):
        name, link = f"fl{tag}n{number}", f"fl{tag}v{number}"
        ip("netns", "add", name)
        stack.callback(ip, "netns", "del", name)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", link, "master", bridge, "up")
        ip("-n", name, "addr", "add", f"{subnet}.{number + 1}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        prefix = ("ip", "netns", "exec", name, "env", "GLOO_SOCKET_IFNAME=eth0")
        hosts.append(Host(prefix=prefix, address=f"{subnet}.{number + 1}", apart=True))
    return hosts


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespaces(done.stderr.strip() or f"ip {' '.join(words)} failed")
