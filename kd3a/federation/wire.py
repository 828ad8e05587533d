"""Messages as bytes and back. The format is safetensors: a JSON header and raw numbers, nothing that could run."""

from __future__ import annotations

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from kd3a.channel import Message, RefusedMessage

#: The only types of numbers that are read from a message.
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
#: Bytes of names and shapes that a message may have besides its numbers, for each tensor.
HEADER = 512


def encode(message: Message) -> bytes:
    """The tensors of a message, named ``kind/name``.

    >>> decode(encode({"stats": {"samples": torch.tensor(7)}}), "amber")
    {'stats': {'samples': tensor(7)}}
    """
    return save(
        {f"{kind}/{n}": t.detach().cpu().contiguous() for kind, tensors in message.items() for n, t in tensors.items()}
    )


def decode(data: bytes, sender: str, like: Message | None = None) -> Message:
    """Read a message. With ``like``, tensors get its devices and memory layouts, and a message that is much larger is
    refused unread; names, shapes and types are compared by :meth:`kd3a.channel.Channel.check`."""
    if like is not None and len(data) > largest(like):
        raise RefusedMessage(f"Message of {sender} has {len(data):,} bytes, at most {largest(like):,} are expected.")
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise RefusedMessage(f"Message of {sender} is not in the safetensors format ({error}).") from None
    message: Message = {}
    for path, tensor in sorted(tensors.items()):  # safetensors gives them in an order of chance
        kind, _, name = path.partition("/")
        if tensor.dtype not in DTYPES:
            raise RefusedMessage(f"Message of {sender}: {path} is {tensor.dtype}, which is not read from messages.")
        form = (like or {}).get(kind, {}).get(name)
        if form is not None and form.shape == tensor.shape and form.dtype == tensor.dtype:
            tensor = torch.empty_like(form).copy_(tensor)  # sums depend on the layout in their last bits
        message.setdefault(kind, {})[name] = tensor
    return message


def largest(like: Message) -> int:
    """Bytes that an encoded message of this form has at most, in double precision too: a wrong type is told as such."""
    return HEADER + sum(2 * t.nbytes + len(n) + HEADER for tensors in like.values() for n, t in tensors.items())
