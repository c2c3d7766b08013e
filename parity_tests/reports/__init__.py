"""Reports of verdicts: tables, pages, JUnit files and certificates."""
