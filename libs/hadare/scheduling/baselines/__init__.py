"""What the baselines are made of: Gavel's programme and rounds, Tiresias' queues, YARN's placement, and a replay."""
