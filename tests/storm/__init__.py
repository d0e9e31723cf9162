"""The storm: everything at once, on few digests and few keys, while things are killed.

Clients do what users do, in two worlds: a registry (registry.py) and an application
(application.py). Runners are real processes (worker.py) over a folder of objects, with a store that
fails and delays; they are killed and stopped, sessions are ended, the server is crashed (kills.py).
An oracle outside of the database knows what clients were told (oracle.py), and a watcher looks all
the while whether that holds (watcher.py). sabotage.py has the faults that a storm must find.
"""
