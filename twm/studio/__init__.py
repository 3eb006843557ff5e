"""The studio: play inside the dream, in a browser.

    protocol.py   messages from the page, checked; packets to it       dream.py     a dream: step, seek, edit, repeat
    session.py    one visitor: a dream, its controls, what is shown    reality.py   the real environment beside it
    library.py    runs on disk, read while they are written            film.py      dreams as GIF, MP4 or WebM
    guard.py      who may ask: hosts, origins, token, rates            server.py    HTTP and websockets

Only ``server.py`` knows the web framework; everything else works, and is tested, without one.
"""
