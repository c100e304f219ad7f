"""The custom resources as values: specifications read from manifests, names, conditions. Pure: nothing
here sends or waits.
"""
