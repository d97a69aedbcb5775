"""The ground of every protocol over HTTP: nothing here knows any one operation."""
