"""Wall-time regret of bandits over draft configurations: worlds, a compiled runner, measures and studies.

Nothing here restates a rule: the runner calls the controllers' own compiled functions.
"""
