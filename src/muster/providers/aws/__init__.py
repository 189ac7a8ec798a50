"""Launch machines on AWS EC2: fleets with tokens, one list per tick, and a rate that follows throttling."""
