import json
import sys

url, key = sys.argv[1:]

# #region client
from openai import OpenAI

client = OpenAI(base_url=url, api_key=key)  # http://localhost:3000/v1
reply = client.embeddings.create(model="text-embedding", input=["Where is my parcel?"])
vector = reply.data[0].embedding
# #endregion

print(json.dumps([len(vector)]))
