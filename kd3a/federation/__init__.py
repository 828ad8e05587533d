"""The same parties on several machines, on Flower: sources are SuperNodes, the target is the ServerApp.

Nothing of the algorithm is written here. A method asks its ``exchange`` for the uploads of a round;
:class:`kd3a.federation.target.RemoteExchange` sends one message to every source's node, where
:func:`kd3a.federation.source.answer` runs the very function that trains a source in one process.

- ``wire``: messages as bytes (safetensors) and back, with an allow-list of types
- ``order``: what the target tells a source, as checked JSON
- ``files``: one file per domain, so that a node holds its own samples and no others
- ``source``, ``target``: the two sides; ``flower``, ``client_app`` and ``server_app`` put them on Flower
- ``worker``: answers without a new interpreter for each; ``keys``: certificates and keys
- ``processes``: SuperLink and SuperNodes on one machine; ``proxy``: counts bytes

Only ``flower``, the two apps, ``keys`` and ``processes`` need the extra ``federated``.
"""
