"""Workers that are stopped or cut off for longer than their lease: do their later actions count?

`python -m chaos.pauses --stops 200 --partitions 100` runs real workers with real jobs. `app.py` has the jobs, `site.py`
the server and the workers, `pausing.py` stops and cuts off workers, `judge.py` judges the logs.
"""
