"""One loop, and what it is told: recipes, tasks, schedules, losses."""
