"""`python -m analysis.recommend`: which controller, and which parameters, to use on given traces and hardware.

`grid` says what is tried, `seconds` replays it, `scenarios` shifts the latency model, `crossfit` chooses on one part of
the requests and judges on the other, `decision` says what follows, `advice` what it rests on and what to measure next,
`document` and `words` are the results for programs and for people.
"""
