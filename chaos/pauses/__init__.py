"""Workers that are stopped, or cut off, for longer than their lease: does anything they do afterwards count?

`python -m chaos.pauses --stops 200 --partitions 100` runs real workers with real jobs. `app.py` are the jobs, `site.py`
the server and the workers, `pausing.py` stops and cuts them, `judge.py` reads what everybody wrote down and judges.
"""
