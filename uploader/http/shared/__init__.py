"""What every protocol over HTTP uses: operations and their routing, errors as problems, what is around a request.

Refuses to know any one operation.
"""
