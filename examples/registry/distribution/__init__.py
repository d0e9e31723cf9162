"""An OCI distribution server over the functions of blobgc's registry preset.

It is the HTTP between clients and `registry.put_manifest` and its neighbours, and nothing else: it
decides nothing about what is kept or deleted. Read it in this order:

    app         which function answers which request
    errors      what a client is told when something is refused
    database    how a function of the preset is called
    blobs       pulling, looking for and deleting blobs
    uploads     pushing blobs
    sessions    what has arrived of an upload so far
    stores      where blobs are written to and read from
    manifests   pulling, pushing and deleting manifests
    lists       tags, repositories and referrers, in pages
    ranges      parts of a blob or of an upload, as headers say them
"""
