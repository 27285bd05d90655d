import json
import sys

# #region client
import numpy as np
import tritonclient.http as http

client = http.InferenceServerClient(sys.argv[1])  # host:port, or host:port/prefix

images = np.zeros((3, 784), dtype=np.float32)
image = http.InferInput("image", images.shape, "FP32")
image.set_data_from_numpy(images)
probabilities = client.infer("digits", [image]).as_numpy("probabilities")  # (3, 10)
# #endregion

print(json.dumps(list(probabilities.shape)))
