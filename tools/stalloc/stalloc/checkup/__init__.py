"""What `stalloc doctor` looks at: each module finds one kind of thing and says it in findings."""
