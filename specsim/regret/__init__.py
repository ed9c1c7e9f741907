"""Wall-time regret of bandits over draft configurations: worlds, a compiled runner, measures, studies (docs/regret.md)."""
