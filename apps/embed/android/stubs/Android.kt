// Signatures of the Android framework that the wrapper calls: compiled against, never shipped.
package android.content

import android.content.res.AssetManager

public abstract class Context {
    public abstract fun getAssets(): AssetManager
}
