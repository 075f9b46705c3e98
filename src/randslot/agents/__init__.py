"""Libraries for agents: tools that search and read them, by the Model Context Protocol."""
