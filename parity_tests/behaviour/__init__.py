"""What the frameworks' own attention does: a call goes in; a few words for each question come out."""
