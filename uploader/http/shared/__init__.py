"""The ground of every protocol over HTTP: operations and their routing, errors as problems, the exchange around a request.

Refuses to know any one operation.
"""
