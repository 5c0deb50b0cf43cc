"""What surrounds an engine's scheduler and knows none: a schedule, from its seed to the rules that it breaks.

    scheduler.py    the seam: an engine's adapter is a SchedulerTarget, and starts StartedSchedulers
    forks.py        each schedule runs in a fork of a scheduler that was started once
    workload.py     what users do is drawn, and users.py sends it, each message at its iteration
    schedule.py     one schedule: its workload is run, and its rules are checked
    rule.py         the seam of rules: what one reads of a schedule; they are in specsim/rules/
    kv.py           the KV of every slot as a hash of the prefix; ledger.py has who wrote and freed it
    blame.py        what the virtual device found, in words that are the same on every release
    hash_model.py   the model, clock.py the time, identity.py the addresses, packages.py the packages, and fakes.py the
                    objects that a release finds
    case.py         a schedule said outright, as a replay file has it
    planted.py      a defect is put into a release on its way in

Nothing here names an engine: what a schedule must know of one comes with its adapter.
"""
