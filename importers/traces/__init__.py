"""What comes in from elsewhere: foreign layouts, formats and recordings, turned into our records."""
