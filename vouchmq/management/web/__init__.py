"""The page, as the management process serves it: its files, and the sessions of its users.

May import the standard library and Starlette; knows the HTTP API as any ASGI application. Start
with `app.py`.
"""
