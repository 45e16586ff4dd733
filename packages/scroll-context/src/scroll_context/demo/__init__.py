"""The demonstration behind `scroll demo`: the trip planning of the paper's figures, with every part
real but the model.

`story` tells it act by act and checks each of its own claims, and `stage` shows it. `script` is
what the scripted model says, most of it a function of what the model was really shown. `world` is
made up, with the tools that search and book in it.
"""
