"""A soak: many Installations that change all the time, while what they need is killed, stopped and deleted.

`population` says what is wanted and changes it, `replicas` and `disturbances` break things, `ledger` is what the
commands of runs write down, `looks` watches on the way what must hold at each moment, and `verdicts` says of a moment
of calm what is not right.
"""
