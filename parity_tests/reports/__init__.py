"""What people read: verdicts go in; tables, pages, JUnit files and certificates come out."""
