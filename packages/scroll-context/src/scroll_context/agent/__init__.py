"""The agent: the loop that joins a session and a model, and the prompts that it begins with."""
