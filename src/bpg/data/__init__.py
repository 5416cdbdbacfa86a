"""Images: where they lie, what they show, and how their pixels become a tensor."""
