"""Records to pages: what runs found, as Markdown and as one HTML file. Nothing here trains or tests."""
