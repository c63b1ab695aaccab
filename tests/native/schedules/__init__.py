"""Schedules on a real server: no tick is fired twice and none is lost, whoever ticks, dies or changes things meanwhile.

Time is the queue's own: `at` sets what its clock says of run times, so a year passes in seconds.
"""
