"""Request bodies, received completely into a memory budget or into the spool. Nothing here knows their purpose."""
