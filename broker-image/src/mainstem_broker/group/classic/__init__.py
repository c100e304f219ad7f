"""Groups of the classic protocol: members join, one of them assigns, all sync.

What both kinds of groups share belongs to `group`, the path from one kind to the other to `group/bridge`.
"""
