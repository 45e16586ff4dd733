"""The demonstration behind `scroll demo`: the trip planning of the paper's figures, with every part real but the model.

`story` tells it act by act on a `Stage` and checks each of its own claims; `script` is what the scripted model says,
most of it a function of what the model was really shown; `tools` answer over the made-up `world`; `child` is the
process that gets killed.
"""
