"""Training. The only folder that imports lightning; `zoo.train.run` is what `zoo train` calls."""
