"""What is measured: a layer and its sizes go in; times and memory, of ours and of other forms, come out.

The other forms are those of tutorials and of the frameworks' own layers.
"""
