"""Makes a Kubernetes of kind on a plain Linux machine; see README.md beside this file.

Belongs here: the Docker engine, the node image, the images of the project and the cluster. Not here: anything
that looks at Mainstem itself.
"""
