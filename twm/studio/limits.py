"""How much one visitor, and all together, may ask for."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ROWS = 4
"""Dreams side by side in one session."""
MAX_STEPS = 3_000
"""Steps of a dream, three minutes at 15 frames a second; fewer where a step needs much memory."""
MAX_WARM_UP = 300
"""Real steps in front of a dream."""
MAX_SEED = 2**31 - 1
MAX_MESSAGE = 128 * 1024
"""Characters of a message from the page. The longest are links: 4 rows of 3,000 actions."""
TRAIL_BYTES = 32 * 2**20
"""Memory for the steps of a dream."""
KEYFRAME_BYTES = 32 * 2**20
"""Memory for the states that make rewinding quick."""


@dataclass(frozen=True)
class Limits:
    """What the server allows; tests make these small."""

    sessions: int = 32
    """Websockets at a time."""
    messages_per_second: float = 60.0
    """From one websocket, on average; what comes faster waits, and a flood is cut off."""
    message_burst: int = 240
    requests_per_second: float = 60.0
    """HTTP requests of one address, on average."""
    request_burst: int = 300
    connections: int = 256
    """Open connections of all kinds."""
    films: int = 1
    """Films encoded at a time; others wait."""
