"""Clean parallel text: rules, what is learned from the data, two passes in bounded memory, and reports."""
